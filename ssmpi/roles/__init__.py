"""What each kind of rank does. Roles introduce siblings to each other: data, embedding, model and sync meet here."""
